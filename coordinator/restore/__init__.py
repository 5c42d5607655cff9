"""What a restart begins with: which tasks get which state and channels, and which are finished already (FLIP-147).

In: a manifest and an execution graph. Out: assignments, or a refusal that says what does not fit.
"""
