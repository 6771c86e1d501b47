// Options of the sanitizers for programs that start MPI. Open MPI keeps memory until the process ends, and takes two
// locks of its TCP transport in either order, though in one thread. Neither is a fault of this project.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
extern "C" const char* __tsan_default_suppressions() { return "deadlock:mca_btl_tcp.so\n"; }
