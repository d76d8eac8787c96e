"""Conversion of HLO protobufs to graphs, features and configurations, and the space of their layouts."""
