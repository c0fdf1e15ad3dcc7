# cmake -DNM=nm -DOBJECTS=a.o;b.o -P check_simd_symbols.cmake
# Fails if an object defines a symbol visible to the linker other than fa3::cpu::<simd>::attend.
if(NOT OBJECTS)
  message(FATAL_ERROR "no objects to look at")
endif()
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --extern-only --defined-only --demangle ${object} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
  set(attend_seen FALSE)
  foreach(symbol IN LISTS symbols)
    if(symbol MATCHES " T fa3::cpu::[a-z0-9]+::attend\\(")
      set(attend_seen TRUE)
    elseif(NOT symbol MATCHES " V DW\\.ref\\.__gxx_personality_v0$") # the unwinder's pointer, the same everywhere
      message(SEND_ERROR "${object}: ${symbol}")
    endif()
  endforeach()
  if(NOT attend_seen)
    message(SEND_ERROR "${object}: attend() is missing")
  endif()
endforeach()
