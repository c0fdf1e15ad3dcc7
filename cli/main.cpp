// The fa3 command: options, and errors as messages and exit codes.
#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "common.hpp"
#include "error.hpp"
#include "npy.hpp"

namespace {

using namespace fa3::cli;

int report(int code, const std::string& message) {
  std::fputs(fmt::format("fa3: error: {}\n", message).c_str(), stderr);
  return code;
}

int exit_code(fa3_status status) {
  switch (status) {
    case FA3_OK: return exit_ok;
    case FA3_INVALID_ARGUMENT:
    case FA3_NOT_SUPPORTED: return exit_bad_input;
    case FA3_NO_DEVICE: return exit_no_device;
    default: return exit_failed;
  }
}

int run_command(int argc, char** argv) {
  CLI::App app("Exact attention for NVIDIA Hopper GPUs, with a CPU backend.", "fa3");
  app.footer("Exit codes: 0 ok, 1 a check or the work failed, 2 bad usage or bad input, 3 no usable device.");
  app.set_version_flag("--version",
                       fmt::format("fa3 {}.{}.{}", FA3_VERSION_MAJOR, FA3_VERSION_MINOR, FA3_VERSION_PATCH));
  app.require_subcommand(1);
  Action action;
  add_run(app, action);
  add_info(app, action);
  add_check(app, action);
  add_accuracy(app, action);
  add_bench(app, action);
  add_ablate(app, action);
  add_trace(app, action);
  try {
    app.parse(argc, argv);
    return action();
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report(exit_bad_input, fmt::format("{}\nRun with --help for more information.", error.what()));
  } catch (const UsageError& error) {
    return report(exit_bad_input, error.what());
  } catch (const FileError& error) {
    return report(exit_bad_input, error.what());
  } catch (const fa3::Error& error) {
    return report(exit_code(error.code), error.what());
  } catch (const std::bad_alloc&) {
    return report(exit_failed, "out of memory");
  } catch (const std::exception& error) {
    return report(exit_failed, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  remove_temporaries_on_signals();
  const int code = run_command(argc, argv);
  const bool written = std::fflush(stdout) == 0 && !std::ferror(stdout);
  return code == exit_ok && !written ? report(exit_failed, "standard output cannot be written") : code;
}
