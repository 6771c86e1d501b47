// fork, exec, and two files for what is printed.
#include "support/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "support/shards.h"

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

[[noreturn]] void become(const std::vector<std::string>& arguments, const std::filesystem::path& out,
                         const std::filesystem::path& err) {
  setpgid(0, 0);
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

Outcome run_program(const std::vector<std::string>& arguments, const Interruption& interruption) {
  const TemporaryFolder folder;
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const pid_t child = fork();
  if (child == 0) become(arguments, folder / "out", folder / "err");
  int status = 0;
  bool interrupted = false;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (elapsed() > kProgramTimeoutSeconds) kill(-child, SIGKILL);
    if (!interrupted && interruption.signal != 0 && elapsed() > interruption.after_seconds) {
      interrupted = true;
      if (interruption.child < 0) kill(child, interruption.signal);
      if (const std::vector<pid_t> children = children_of(child); interruption.child >= 0 && !children.empty())
        kill(children[static_cast<size_t>(interruption.child) % children.size()], interruption.signal);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  Outcome outcome;
  outcome.seconds = elapsed();
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read_all(folder / "out");
  outcome.err = read_all(folder / "err");
  return outcome;
}

std::vector<std::string> machine_options() {
  const char* text = std::getenv("LFM2_TEST_MACHINE");
  std::istringstream stream(text == nullptr ? "--device cpu" : text);
  std::vector<std::string> options;
  for (std::string option; stream >> option;) options.push_back(option);
  return options;
}

Outcome run_stage(int ranks, const std::vector<std::string>& arguments, const Interruption& interruption) {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  std::vector<std::string> command = {LFM2_MPIEXEC, "-np",  std::to_string(ranks), "--oversubscribe",
                                      "--bind-to",  "none", LFM2_STAGE_PROGRAM};
  const auto given = [&](const std::string& option) {
    return std::find(arguments.begin(), arguments.end(), option) != arguments.end();
  };
  if (!given("--threads")) command.insert(command.end(), {"--threads", "1"});
  if (!given("--device") && !given("--transport")) {
    const std::vector<std::string> machine = machine_options();
    command.insert(command.end(), machine.begin(), machine.end());
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command, interruption);
}

}  // namespace lfm2::test
