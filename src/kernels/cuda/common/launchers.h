// What all launchers have in common: each takes raw device pointers and sizes that CudaOps or Products has checked,
// enqueues on `stream` and returns. None allocates or waits, so that steps can be recorded as graphs.
#pragma once

namespace lfm2 {

// Every launcher that writes a routing, or makes one visible, returns when the kernels after the launch may read the
// routing. kAfterWait: after their wait_for_previous() (dependent_launch.cuh). kBeforeWait: at once, by __ldcg, as a
// line of L1 may be older. The caller passes it on to the kernels that read the routing.
enum class [[nodiscard]] Visible : bool{kAfterWait, kBeforeWait};

}  // namespace lfm2
