// USR1, TERM and INT: the first one asks the run to stop where all stages can; another one more than a second later
// ends this process at once.
#pragma once

namespace lfm2 {

void catch_stop_signals();  // from here on, also where whoever started the program had blocked them
bool stop_requested();

}  // namespace lfm2
