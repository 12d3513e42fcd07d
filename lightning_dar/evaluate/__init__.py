"""Downstream tasks through lm-evaluation-harness: any checkpoint of the project, or a Hugging Face folder."""
