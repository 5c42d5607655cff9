"""What operators hold: its bytes are accounted, and above a budget it lies in files.

In: batches to be kept or spilled, state to be written behind an operator's back. Out: grants of memory, batches from
disk. Buffers, operators, the plan and the runtime use it.
"""
