#include "scripts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "common.hpp"

namespace fa3::cli {

namespace fs = std::filesystem;

fs::path find(const char* what, const std::vector<fs::path>& candidates) {
  std::string tried;
  for (const fs::path& candidate : candidates) {
    if (fs::exists(candidate)) return candidate;
    tried += (tried.empty() ? "" : ", ") + candidate.string();
  }
  throw UsageError(fmt::format("{} was not found; looked for {}", what, tried));
}

fs::path command_directory() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

std::string find_script(const std::string& name) {
  const fs::path here = command_directory();
  return find(name.c_str(), {here / ".." / FA3_INSTALL_DATADIR / "fa3" / name,
                             here / ".." / ".." / ".." / "bench" / name, fs::path("bench") / name});
}

void become_python(std::vector<std::string> words) {
  words.insert(words.begin(), "python3");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(stdout);
  execvp(argv[0], argv.data());
  throw std::runtime_error(fmt::format("python3 cannot be started: {}", std::strerror(errno)));
}

int draw(const std::string& script, const std::string& result, const std::string& out) {
  std::vector<std::string> words = {find_script(script), result};
  if (!out.empty()) words.insert(words.end(), {"--out", out});
  become_python(words);
}

}  // namespace fa3::cli
