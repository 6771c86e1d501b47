// USR1, TERM and INT: the first one asks the run to stop where all stages can; another one more than a second later
// ends this process at once.
#pragma once

namespace lfm2 {

// From here on, also where whoever started the program had blocked them. Once, before any other thread is started.
void catch_stop_signals();
bool stop_requested();

}  // namespace lfm2
