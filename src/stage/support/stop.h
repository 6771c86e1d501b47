// Handles USR1, TERM and INT: the first signal asks the run to stop at a point where all stages can. Another one more
// than a second later ends this process at once.
#pragma once

namespace lfm2 {

void catch_stop_signals();  // also unblocks the signals, which a launcher may have blocked
bool stop_requested();

}  // namespace lfm2
