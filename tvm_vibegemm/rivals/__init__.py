"""What a kernel has to beat: TVM's reference schedule, later MetaSchedule and cuBLAS."""
