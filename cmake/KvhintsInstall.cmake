# What `cmake --install` puts where. The package files are written by hand, because an export of an
# imported target would bake in this build tree's paths; these find everything from their own place.

include(CMakePackageConfigHelpers)

set(kvhints_description "KV hints for LLM serving: admission, plan, broadcast, block transfer")
set(kvhints_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvhints")

install(PROGRAMS "${kvhints_library}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${kvhints_lib_dir}/libkvhints.so.${kvhints_soversion}" "${kvhints_lib_dir}/libkvhints.so"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES include/kvhints.h include/kvhints.hpp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY integrations/tensorrt_llm/include/kvhints DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

configure_package_config_file(cmake/kvhintsConfig.cmake.in "${CMAKE_BINARY_DIR}/kvhintsConfig.cmake"
  INSTALL_DESTINATION "${kvhints_package_dir}"
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/kvhintsConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/kvhintsConfig.cmake" "${CMAKE_BINARY_DIR}/kvhintsConfigVersion.cmake"
        DESTINATION "${kvhints_package_dir}")

# pkg-config finds the prefix from the file's own place: lib/pkgconfig is two levels below it, more
# where the library directory has more parts.
file(RELATIVE_PATH kvhints_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" kvhints_pc_to_prefix "${kvhints_pc_to_prefix}")
configure_file(cmake/kvhints.pc.in "${CMAKE_BINARY_DIR}/kvhints.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/kvhints.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
