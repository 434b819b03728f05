"""Fine-tuning tasks: files in, labelled examples, their rows of token ids and scores out.

family.py defines the interface of a family of tasks. Each has a file, such as
classification.py. registry.py lists the families, and the readers of the tasks' files.
"""
