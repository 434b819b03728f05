"""Fine-tuning tasks: files in, labelled examples, their rows of token ids and scores out.

family.py says what a family of tasks answers for. Each has a file: classification.py (read by
glue.py and registry.py), choice.py, tagging.py, squad.py.
"""
