// For unit_tests under sanitizers: uses of a stack frame after its return are looked for with g++ 12 too, as they are
// with g++ 13 unasked; and a death test, forked beside other threads, may start threads of its own.
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=1"; }
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
