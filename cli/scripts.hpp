// The Python scripts of bench/ that subcommands run, and where they and the shared library are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fa3::cli {

/// The first of `candidates` that exists. Throws UsageError.
std::filesystem::path find(const char* what, const std::vector<std::filesystem::path>& candidates);

/// The directory of the command itself.
std::filesystem::path command_directory();

/// A script of bench/: of an installed command, else of the source tree.
std::string find_script(const std::string& name);

/// Becomes python3 with these arguments; comes back only to say why not.
[[noreturn]] void become_python(std::vector<std::string> words);

/// Draws a result file with a script, into the folder `out`, by default here.
[[noreturn]] int draw(const std::string& script, const std::string& result, const std::string& out);

}  // namespace fa3::cli
