// The signals that ask a program to stop. Their handlers only remember the request; the program looks for it between
// two pieces of work.
#pragma once

namespace lfm2 {

// For lfm2_stage: USR1, USR2, TERM, INT, XCPU (a soft limit of CPU time) and, unless nohup has it ignored, HUP ask the
// run to stop at a point where all stages can. TERM, INT or HUP more than a second later ends this process at once,
// with kStopped. Also where whoever started the program had blocked them. Call it once, before any other thread is
// started.
void catch_stop_signals();
// For a conversation: the same, but INT and USR2 end an answer instead, and are only counted here.
void catch_conversation_signals();
// For weights-tools: INT, TERM and HUP ask long work to end and to remove its temporary files. The same signal a second
// time ends this process at once, as if it had never been caught.
void catch_interrupts();

int stop_signal();  // the newest signal that was caught; 0: none
bool stop_requested();
int interrupts();  // how many signals that end an answer were caught

}  // namespace lfm2
