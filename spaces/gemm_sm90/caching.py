"""How loads tell the L2 what to keep, and how much it keeps."""

# Policies of the L2, as PTX's createpolicy encodes them for all of an access.
EVICT_NORMAL, EVICT_FIRST = 0x1000000000000000, 0x12F0000000000000
# Bytes of an operand that the L2 of 50 MB holds until the next launch. Where an operand of 19 MB was let go, launches
# that followed one another took 1.02 times as long, and where one of 35 MB to 132 MB was, 0.95 to 1.01 times (H200,
# 2026-11-23; `experiments/results/promotion.md`).
KEPT_IN_L2 = 30 << 20
