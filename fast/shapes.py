"""The arrays that signatures speak of: the names of `reference/shapes.py` over backend arrays.

An array is an `mx.array` in `fast/ops` and an `np.ndarray` in `fast/cpu`. Token ids and positions
stay NumPy on the host in both, so that a mask is chosen without waiting for the device.
"""

from typing import Annotated, Any

import numpy as np

Array = Any
Tokens = Annotated[np.ndarray, "B L"]
Positions = Annotated[np.ndarray, "B L"]
KeyPositions = Annotated[np.ndarray, "B S"]
RowIndex = Annotated[np.ndarray, "B"]
Hidden = Annotated[Any, "B L E"]
Inputs = Annotated[Any, "B L K"]
Outputs = Annotated[Any, "B L N"]
Gain = Annotated[Any, "E"]
Bias = Annotated[Any, "N"]
Heads = Annotated[Any, "B L H D"]
Queries = Annotated[Any, "B H L D"]
Keys = Annotated[Any, "B G S D"]
Values = Annotated[Any, "B G S D"]
NewKeys = Annotated[Any, "B G L D"]
Scores = Annotated[Any, "B H L S"]
Frequencies = Annotated[np.ndarray, "D/2"]
RowFrequencies = Annotated[np.ndarray, "B D/2"]
Weight = Annotated[Any, "N K"]
LoraDown = Annotated[Any, "R K"]
LoraUp = Annotated[Any, "N R"]
TableDown = Annotated[Any, "R E"]
TableUp = Annotated[Any, "V R"]
Magnitude = Annotated[Any, "N"]
Routing = Annotated[Any, "B L X"]
Widening = Annotated[Any, "X F E"]
Narrowing = Annotated[Any, "X E F"]
