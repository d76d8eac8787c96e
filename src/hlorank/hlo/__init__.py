"""HLO protobufs: reading them, and the graphs, features and configurations that they hold."""
