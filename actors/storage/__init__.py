"""What a job keeps in its checkpoint folder: the log, snapshots, digests, records of inputs, in files or in a bucket.

In: values of coordinator and tasks. Out: sealed files, and errors that say which one is damaged. No Ray: the embedded
runner uses it as well.
"""
