// Runs a program with fork and exec; two files take what it prints.
#include "support/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace lfm2::test {

namespace {

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream list("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> children(std::istream_iterator<pid_t>(list), {});
  std::sort(children.begin(), children.end());
  return children;
}

// The ranks of a test are on one host. Open MPI chooses the same by itself, after a look at fabrics that takes half of
// the time of a start.
void choose_one_host() {
  if (on_gpus()) return;  // another Open MPI, perhaps one with UCX
  setenv("OMPI_MCA_pml", "ob1", 0);
  setenv("OMPI_MCA_btl", "self,vader", 0);
}

[[noreturn]] void become(const std::vector<std::string>& arguments, const std::filesystem::path& out,
                         const std::filesystem::path& err) {
  choose_one_host();
  setpgid(0, 0);
  sigset_t none{};
  sigemptyset(&none);
  // A launcher passes no signal on that is blocked where the tests run.
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
  dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  _exit(127);
}

}  // namespace

std::vector<std::string> Outcome::error_lines() const {
  std::vector<std::string> lines;
  std::istringstream stream(err);
  for (std::string line; std::getline(stream, line);)
    if (line.rfind("lfm2_stage: ", 0) == 0 || line.rfind("weights-tools: ", 0) == 0) lines.push_back(line);
  return lines;
}

RunningProgram::RunningProgram(const std::vector<std::string>& arguments) : child_(fork()) {
  if (child_ == 0) become(arguments, folder_ / "out", folder_ / "err");
}

RunningProgram::~RunningProgram() {
  if (child_ == 0) return;
  kill(-child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

std::string RunningProgram::err() const { return read_all(folder_ / "err"); }

void RunningProgram::signal(int number) const { kill(child_, number); }

pid_t RunningProgram::process_of(int rank) const {
  const std::string parent = fmt::format("\nPPid:\t{}\n", child_);
  const std::string variable = fmt::format("OMPI_COMM_WORLD_RANK={}", rank) + '\0';
  for (const auto& entry : std::filesystem::directory_iterator("/proc"))
    if (read_all(entry.path() / "status").find(parent) != std::string::npos &&
        read_all(entry.path() / "environ").find(variable) != std::string::npos)
      return std::stoi(entry.path().filename());
  return 0;
}

Outcome RunningProgram::wait(const Interruption& interruption) {
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); };
  int status = 0;
  bool interrupted = false;
  while (waitpid(child_, &status, WNOHANG) == 0) {
    if (elapsed() > kProgramTimeoutSeconds) kill(-child_, SIGKILL);
    if (!interrupted && interruption.signal != 0 && elapsed() > interruption.after_seconds) {
      interrupted = true;
      if (interruption.child < 0) kill(child_, interruption.signal);
      if (const std::vector<pid_t> children = children_of(child_); interruption.child >= 0 && !children.empty())
        kill(children[static_cast<size_t>(interruption.child) % children.size()], interruption.signal);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  child_ = 0;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = read_all(folder_ / "out"),
          .err = read_all(folder_ / "err"),
          .seconds = elapsed()};
}

Outcome run_program(const std::vector<std::string>& arguments, const Interruption& interruption) {
  return RunningProgram(arguments).wait(interruption);
}

void run_weights_tools(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LFM2_WEIGHTS_TOOLS_PROGRAM);
  arguments.push_back("-q");
  const Outcome outcome = run_program(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
}

std::vector<std::string> machine_options() {
  const char* text = std::getenv("LFM2_TEST_MACHINE");
  std::istringstream stream(text == nullptr ? "--device cpu" : text);
  std::vector<std::string> options;
  for (std::string option; stream >> option;) options.push_back(option);
  return options;
}

bool on_gpus() { return std::getenv("LFM2_TEST_MACHINE") != nullptr; }

std::vector<std::string> mpi_command(int ranks, const std::string& program) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("HWLOC_COMPONENTS", "-opencl", 0);  // as launch/run.sh: else mpirun may not pass signals on
  std::vector<std::string> command = {LFM2_MPIEXEC,      "-np",       std::to_string(ranks),
                                      "--oversubscribe", "--bind-to", "none"};
  if (std::getenv("LFM2_TEST_GPUS") != nullptr) command.emplace_back(LFM2_OWN_GPU_SCRIPT);
  command.push_back(program);
  return command;
}

std::vector<std::string> stage_command(int ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = mpi_command(ranks, LFM2_STAGE_PROGRAM);
  const auto given = [&](const std::string& option) {
    return std::find(arguments.begin(), arguments.end(), option) != arguments.end();
  };
  if (!given("--threads")) command.insert(command.end(), {"--threads", "1"});
  if (!given("--device") && !given("--transport")) {
    const std::vector<std::string> machine = machine_options();
    command.insert(command.end(), machine.begin(), machine.end());
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Outcome run_stage(int ranks, const std::vector<std::string>& arguments, const Interruption& interruption) {
  std::vector<std::string> command = stage_command(ranks, arguments);
  // Where a rank ends the job, mpirun waits a second before it kills the others. Where a test ends it, that second is
  // theirs to write what is done.
  if (interruption.signal == 0) command.insert(command.begin() + 1, {"--mca", "odls_base_sigkill_timeout", "0"});
  return run_program(command, interruption);
}

}  // namespace lfm2::test
