"""Passages that a trained model of characters writes."""

from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.datasets import shakespeare


def writes(task: str) -> bool:
  """Whether the model of a task continues texts."""
  return task == shakespeare.TASK.name


def passage(
    model: tff.learning.models.FunctionalModel,
    prompt: str,
    length: int,
    temperature: float,
    seed: Optional[int] = None,
) -> str:
  """Returns so many characters that continue a prompt, each drawn from the model's logits.

  Args:
    model: A model of Shakespeare's characters, with its trained weights as initial ones.
    prompt: What to continue; characters that the vocabulary lacks count as one and the same.
    length: The number of characters.
    temperature: Divides the logits.
    seed: Of the draws; None: fresh.
  """
  rng = np.random.default_rng(seed)
  tokens = shakespeare.to_tokens(prompt.encode())
  size = model.input_spec[0].shape[1]
  predict = tf.function(
      lambda x: model.predict_on_batch(model.initial_weights, x, training=False)
  )
  written = []
  for _ in range(length):
    # The last characters, and padding behind them, which logits before it do not depend on.
    window = tokens[-size:]
    x = np.zeros([1, size], np.int32)
    x[0, : len(window)] = window
    logits = predict(x)[0, len(window) - 1].numpy()[shakespeare.CHARACTER_TOKENS] / temperature
    weights = np.exp(logits - logits.max())
    drawn = shakespeare.CHARACTER_TOKENS[rng.choice(len(weights), p=weights / weights.sum())]
    tokens = np.append(tokens, drawn)
    written.append(shakespeare.to_character(drawn))
  return ''.join(written)
