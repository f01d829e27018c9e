"""TensorFlow Datasets without TensorFlow."""
