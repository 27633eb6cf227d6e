"""The operator's settings, and what is built from them: policy, catalogue of tools, model."""
