// What all launchers have in common: each takes raw device pointers and sizes that CudaOps or Products has checked,
// enqueues on `stream` and returns. None allocates or waits, so that steps can be recorded as graphs.
#pragma once

namespace lfm2 {

// Every launcher that writes a routing returns when the kernels after the launch may read the routing. kAfterWait:
// after their pdl_wait() (dependent_launch.cuh). kBeforeWait: at once, by __ldcg, as a line of L1 may be
// older. The caller passes it on to the kernels that read the routing. The grouped products write none, but all of them
// begin the next kernel only after their own wait, so Products::multiply_groups says kBeforeWait for them.
enum class [[nodiscard]] Visible : bool{kAfterWait, kBeforeWait};

}  // namespace lfm2
