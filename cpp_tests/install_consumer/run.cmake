# Installs the package, moves it, and builds and runs consumers against the new place: one through
# find_package, one through pkg-config.

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result)
    message(FATAL_ERROR "failed: ${ARGV}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
run("${CMAKE_COMMAND}" --install "${KVHINTS_BUILD}" --prefix "${WORK}/first")
file(RENAME "${WORK}/first" "${WORK}/moved")

run("${CMAKE_COMMAND}" -S "${KVHINTS_SOURCE}/cpp_tests/install_consumer" -B "${WORK}/build" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${WORK}/moved")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/consumer")

file(GLOB_RECURSE pc "${WORK}/moved/*/kvhints.pc")
get_filename_component(pc_dir "${pc}" DIRECTORY)
get_filename_component(lib_dir "${pc_dir}" DIRECTORY)
run(sh -c "PKG_CONFIG_PATH='${pc_dir}' && export PKG_CONFIG_PATH \
  && c++ -std=c++17 '${KVHINTS_SOURCE}/cpp_tests/install_consumer/consumer.cpp' -o '${WORK}/by_pkg_config' \
       $(pkg-config --cflags --libs kvhints) -Wl,-rpath,'${lib_dir}' \
  && '${WORK}/by_pkg_config'")
