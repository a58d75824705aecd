"""Networks: the convolutional encoder, the policy, the critics, and how they start and average."""
