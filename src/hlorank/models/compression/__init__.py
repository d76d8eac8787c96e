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

An example of four nodes. An `add`, node 1, consumes a `dot`, node 0, and two equal parameters, nodes 2 and 3. Only the
`dot` is configurable, and there are two configurations, A and B. That makes eight states, of four initial colours:

>>> import numpy as np
>>> from hlorank.models.compression.build_plan import quotient_graph
>>> from hlorank.models.compression.colouring import Colouring
>>> from hlorank.models.compression.declarations import EdgeKind, Norm
>>> from hlorank.models.compression.segment import Edges
>>> consumer_and_operand = np.array([[1, 0], [1, 2], [1, 3]])
>>> kind = EdgeKind(Norm.SUM, "separate")
>>> edges = Edges(consumer_and_operand, nodes=4, configurable=1, degrees=None).neighbourhood(kind)
>>> initial = Colouring.of_keys(np.array([["dot, A", "dot, B"]]), np.array(["add", "parameter", "parameter"]))
>>> initial.colour_of  # a row for each node, a column for each configuration
array([[0, 1],
       [2, 2],
       [3, 3],
       [3, 3]])

The first layer reaches the nodes at most one edge away from the `dot`, which are nodes 0 and 1 (the 1-hop prefix). The
`add` now differs between A and B; the parameters do not yet:

>>> first = initial.refine(edges, prefix=2)
>>> first.colour_of
array([[0, 1],
       [2, 3],
       [4, 4],
       [4, 4]])

So the first layer computes five states instead of eight. Its quotient graph has an edge from each colour before the
layer to each colour after it that receives from it. The `add` under A, colour 2, receives from itself (colour 2
before), from the `dot` under A (colour 0) and twice from the colour of the parameters (colour 3):

>>> quotient = quotient_graph(initial, first, edges, kind)
>>> start, stop = quotient.matrix.row_starts[2:4]
>>> (quotient.matrix.column[start:stop] // kind.types).tolist()
[2, 0, 3, 3]

The second layer reaches all nodes. The parameters still equal each other, which leaves six states of eight:

>>> first.refine(edges, prefix=4).colour_of
array([[0, 1],
       [2, 3],
       [4, 5],
       [4, 5]])
"""
