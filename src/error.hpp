// Failures below the C ABI travel as this exception; api.cpp turns it into a status and fa3_last_error().
#pragma once

#include <stdexcept>
#include <string>

#include "fa3/fa3.h"

namespace fa3 {

struct Error : std::runtime_error {
  Error(fa3_status code_, const std::string& message) : std::runtime_error(message), code(code_) {}
  fa3_status code;
};

}  // namespace fa3
