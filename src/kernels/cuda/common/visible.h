// What a kernel may read before it waits for the launch before its own (dependent_launch.cuh).
#pragma once

namespace lfm2 {

// Every launcher that writes a routing, or makes one visible, returns this: when the kernels after the launch may read
// the routing. kAfterWait: after their wait_for_previous(). kBeforeWait: at once, by __ldcg, as a line of L1 may be
// older. The caller passes it on to the kernels that read the routing.
enum class [[nodiscard]] Visible : bool{kAfterWait, kBeforeWait};

}  // namespace lfm2
