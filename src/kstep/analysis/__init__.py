"""What did an encoder learn? One file per question.

Each has a function of arrays to numbers and one of numbers to a figure. `questions` asks them of
any encoder, `evaluation_set` holds the states they are asked about.
"""
