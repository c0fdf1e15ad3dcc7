# Install rules: libraries, headers, the fa3 command, find_package(fa3) and pkg-config. Everything is relocatable.
include(CMakePackageConfigHelpers)

# Two export sets: a static library that holds kernels needs the CUDA toolkit at link time, the shared one needs nothing.
set_target_properties(fa3_static PROPERTIES EXPORT_NAME static)
install(TARGETS fa3 EXPORT fa3-shared-targets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS fa3_static EXPORT fa3-static-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fa3 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET fa3_command)
  install(TARGETS fa3_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/bench/compare.py ${PROJECT_SOURCE_DIR}/bench/plot.py
                   ${PROJECT_SOURCE_DIR}/bench/plot_accuracy.py
          DESTINATION ${CMAKE_INSTALL_DATADIR}/fa3)
  install(FILES ${PROJECT_SOURCE_DIR}/bench/pictures.py DESTINATION ${CMAKE_INSTALL_DATADIR}/fa3)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(FA3_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/fa3)
foreach(kind shared static)
  install(EXPORT fa3-${kind}-targets NAMESPACE fa3:: DESTINATION ${FA3_CMAKE_DIR})
endforeach()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/fa3-config.cmake.in ${PROJECT_BINARY_DIR}/fa3-config.cmake
  INSTALL_DESTINATION ${FA3_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fa3-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fa3-config.cmake ${PROJECT_BINARY_DIR}/fa3-config-version.cmake
        DESTINATION ${FA3_CMAKE_DIR})

# What a program needs that links libfa3.a: pkg-config --static --libs fa3.
set(FA3_PC_LIBS_PRIVATE "-lstdc++ -lm -lpthread")
if(FA3_WITH_CUDA)
  string(PREPEND FA3_PC_LIBS_PRIVATE "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt ")
endif()
file(RELATIVE_PATH FA3_PC_LIBDIR ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH FA3_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/fa3.pc.in ${PROJECT_BINARY_DIR}/fa3.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fa3.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
