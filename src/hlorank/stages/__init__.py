"""The stages of the pipeline: each reads the configuration, calls one package and writes its outputs."""
