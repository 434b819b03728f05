"""What fine-tuning is asked: files in, labelled examples, their rows of token ids and scores out.

task.py says what a family answers for: classification.py (read by glue.py and own.py), choice.py,
tagging.py (conll.py), squad.py.
"""
