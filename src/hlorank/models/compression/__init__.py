"""Colour refinement, which finds equal node states of a segment, so that each distinct one is computed once.

A node has a state under every configuration. Two of these states are equal after layer l if their nodes have equal
features and equal configurations, and if the same holds for all nodes that are at most l edges away from them. Colour
refinement, also called the 1-dimensional Weisfeiler-Leman test, finds them: (node, configuration) pairs start with a
colour for their features and configuration, and every layer of message passing refines it by the colours of the
neighbours (Shervashidze et al., "Weisfeiler-Lehman Graph Kernels", JMLR 2011; used to compress graph neural networks by
Bollen et al., "Learning Graph Neural Networks using Exact Compression", GRADES-NDA 2023). Each layer then runs on a
quotient graph: a bipartite graph from the colours before it to the colours after it. The result is exact, whatever the
weights of the layers.

Everything here is NumPy. `declarations` has what the layers of a model declare, and `build_plan` builds from it, for a
segment and configurations, all indices that the model needs; the model itself is tensors only.

docs/explanation/gst.md has an example.
"""
