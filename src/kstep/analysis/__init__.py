"""What did an encoder learn? One file per question.

Each has a function from arrays to numbers and one from numbers to a figure. `questions` asks them
of any encoder, `evaluation_set` holds the states they are asked about.
"""
