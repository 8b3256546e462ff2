"""Small environments whose value and policy gradient are known exactly, in float64.

Each has a table of logits `[S, A]` as its policy: S states, A actions, π(a|s) = softmax(logits[s])[a].
"""
