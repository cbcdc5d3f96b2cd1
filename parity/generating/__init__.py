"""Text from any backend: generation, chat, their timing and their random numbers."""
