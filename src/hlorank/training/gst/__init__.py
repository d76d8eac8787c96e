"""Graph segment training (GST): methods, sampling of segments, the embedding table and head finetuning."""
