"""The dimension key of the project, and the arrays that signatures speak of.

B batch · L queries in this step · S keys held · E model width · H query heads · G key/value heads
D head width · F feed-forward width · V vocabulary · X experts · N output features
K input features · R rank of an adapter
"""

from typing import Annotated

import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.stack import Stack
from lockstep.reference.checkpoint.unread import Unread

Tokens = Annotated[np.ndarray, "B L"]
Positions = Annotated[np.ndarray, "B L"]
KeyPositions = Annotated[np.ndarray, "B S"]
RowIndex = Annotated[np.ndarray, "B"]
Hidden = Annotated[np.ndarray, "B L E"]
Inputs = Annotated[np.ndarray, "B L K"]
Outputs = Annotated[np.ndarray, "B L N"]
Gain = Annotated[np.ndarray, "E"]
Bias = Annotated[np.ndarray, "N"]
Heads = Annotated[np.ndarray, "B L H D"]
Queries = Annotated[np.ndarray, "B H L D"]
Keys = Annotated[np.ndarray, "B G S D"]
Values = Annotated[np.ndarray, "B G S D"]
NewKeys = Annotated[np.ndarray, "B G L D"]
Scores = Annotated[np.ndarray, "B H L S"]
Mask = Annotated[np.ndarray, "B 1 L S"]
Frequencies = Annotated[np.ndarray, "D/2"]
RowFrequencies = Annotated[np.ndarray, "B D/2"]
Weight = Annotated[np.ndarray | Packed | Unread, "N K"]
Table = Annotated[np.ndarray | Packed, "N K"]  # whose rows are looked up, so it is in memory
LoraDown = Annotated[np.ndarray, "R K"]
LoraUp = Annotated[np.ndarray, "N R"]
TableDown = Annotated[np.ndarray, "R E"]
TableUp = Annotated[np.ndarray, "V R"]
Magnitude = Annotated[np.ndarray, "N"]
Routing = Annotated[np.ndarray, "B L X"]
Widening = Annotated[np.ndarray | Packed | Stack, "X F E"]
Narrowing = Annotated[np.ndarray | Packed | Stack, "X E F"]
Array = np.ndarray
