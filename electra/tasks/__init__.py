"""What fine-tuning is asked: files in, labelled examples, their rows of token ids and scores out.

One file a family: glue.py, own.py. SQuAD, tagging and multiple choice will stand beside them.
"""
