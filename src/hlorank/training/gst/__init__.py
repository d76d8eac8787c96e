"""Graph segment training (GST): aggregation of a graph's segments, the embedding table and head finetuning."""
