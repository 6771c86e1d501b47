// The signals that ask a program to stop. Their handlers only remember the request; the program looks for it between
// two pieces of work.
#pragma once

namespace lfm2 {

// For lfm2_stage: USR1, USR2, TERM, INT, XCPU (a soft limit of CPU time) and HUP ask the run to stop at a point where
// all stages can. HUP stays ignored under nohup. A further TERM, INT or HUP more than a second later ends this process
// at once, with kStopped. Signals that the parent process blocked are unblocked. Call this once, before any other
// thread starts.
void catch_stop_signals();
// For a conversation: the same, but INT and USR2 end only the current answer. This file only counts them.
void catch_conversation_signals();
// For weights-tools: INT, TERM and HUP ask long work to end and to remove its temporary files. The same signal a second
// time ends this process at once, as if it had never been caught.
void catch_interrupts();

int stop_signal();  // the newest signal that was caught; 0: none
bool stop_requested();
int interrupts();  // number of caught signals that end an answer

}  // namespace lfm2
