# The library, built by cargo in a target directory of this build tree, and the target
# kvhints::kvhints that other targets here link. Files are copied only when they changed, so a
# build with nothing to do relinks nothing.

find_program(CARGO_EXECUTABLE cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" REQUIRED)

set(kvhints_soversion 0)
set(kvhints_cargo_dir "${CMAKE_BINARY_DIR}/cargo")
set(kvhints_lib_dir "${CMAKE_BINARY_DIR}/lib")
set(kvhints_library "${kvhints_lib_dir}/libkvhints.so.${PROJECT_VERSION}")
# The test library with one call that panics has the product's SONAME, so it needs its own folder.
set(kvhints_panic_probe "${CMAKE_BINARY_DIR}/panic_probe/libkvhints.so.${kvhints_soversion}")

set(kvhints_cargo_arguments --release --locked --target-dir "${kvhints_cargo_dir}"
    --package kvhints --lib)
set(kvhints_copies
    COMMAND "${CMAKE_COMMAND}" -E copy_if_different
            "${kvhints_cargo_dir}/release/libkvhints.so" "${kvhints_library}")
set(kvhints_byproducts "${kvhints_library}")
if(GTest_FOUND)
  list(APPEND kvhints_cargo_arguments --package panic-probe)
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/panic_probe")
  list(APPEND kvhints_copies
       COMMAND "${CMAKE_COMMAND}" -E copy_if_different
               "${kvhints_cargo_dir}/release/libpanic_probe.so" "${kvhints_panic_probe}")
  list(APPEND kvhints_byproducts "${kvhints_panic_probe}")
endif()
set(kvhints_cargo_environment)
if(MPI_FOUND)
  list(APPEND kvhints_cargo_arguments --features kvhints/mpi)
  # The crate builds against whatever this compiler wrapper belongs to.
  list(APPEND kvhints_cargo_environment "MPICC=${MPI_C_COMPILER}")
endif()

file(MAKE_DIRECTORY "${kvhints_lib_dir}")
add_custom_target(kvhints_cargo ALL
  COMMAND "${CMAKE_COMMAND}" -E env ${kvhints_cargo_environment}
          "${CARGO_EXECUTABLE}" build ${kvhints_cargo_arguments}
  ${kvhints_copies}
  COMMAND "${CMAKE_COMMAND}" -E create_symlink
          "libkvhints.so.${PROJECT_VERSION}" "${kvhints_lib_dir}/libkvhints.so.${kvhints_soversion}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink
          "libkvhints.so.${kvhints_soversion}" "${kvhints_lib_dir}/libkvhints.so"
  WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
  BYPRODUCTS ${kvhints_byproducts}
  COMMENT "Building libkvhints.so with cargo"
  USES_TERMINAL VERBATIM)

add_library(kvhints SHARED IMPORTED GLOBAL)
set_target_properties(kvhints PROPERTIES
  IMPORTED_LOCATION "${kvhints_library}"
  IMPORTED_SONAME "libkvhints.so.${kvhints_soversion}"
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_SOURCE_DIR}/include")
add_dependencies(kvhints kvhints_cargo)
add_library(kvhints::kvhints ALIAS kvhints)
