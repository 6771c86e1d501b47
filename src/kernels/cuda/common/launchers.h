// What all launchers have in common: each takes raw device pointers and sizes that CudaOps or Products has checked,
// enqueues on `stream` and returns. None allocates or waits, so that steps can be recorded as graphs.
#pragma once

namespace lfm2 {

// When later kernels may read a routing. Every launcher that writes a routing returns this, and the caller passes it to
// the kernels that read the routing. kAfterWait: after their pdl_wait() (dependent_launch.cuh). kBeforeWait: at once,
// by __ldcg, because a line of L1 may be older. Grouped products write no routing. If the offsets are not visible
// before its wait, such a product triggers the next kernel only after it, so Products::multiply_groups sets
// kBeforeWait.
enum class [[nodiscard]] Visible : bool{kAfterWait, kBeforeWait};

}  // namespace lfm2
