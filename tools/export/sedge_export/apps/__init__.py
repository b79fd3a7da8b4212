"""Writes a trained model as a file for an app, in float32 or int8."""
