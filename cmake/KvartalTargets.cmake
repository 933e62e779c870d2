# The three ways this tree makes a target. Includes are written from the repository root ("daemon/base/check.h").
include(GoogleTest)

add_compile_options(-Wall -Wextra -Wshadow
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> -Werror -fno-omit-frame-pointer -g1)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-restrict)  # false alarm on "literal" + std::string (GCC bug 105651)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety)
endif()
if(KVARTAL_SANITIZE)
  # Above -O1 g++ takes almost three times as long over what the sanitizers add. A finding ends the process. What
  # Debian's libraries made is of no type that vptr knows.
  add_compile_options(-fsanitize=${KVARTAL_SANITIZE} -O1 -fno-sanitize-recover=all -fno-sanitize=vptr)
  add_link_options(-fsanitize=${KVARTAL_SANITIZE})
endif()
if(KVARTAL_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
include_directories(${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})

# kvartal_library(NAME SOURCES a.cc ... DEPS lib ...): a static library kvartal_NAME.
function(kvartal_library NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(kvartal_${NAME} STATIC ${ARG_SOURCES})
  target_link_libraries(kvartal_${NAME} PUBLIC ${ARG_DEPS})
endfunction()

# kvartal_proto(NAME [GRPC] FILE x.proto): kvartal_NAME with the code generated into the same place of the build tree,
# so it is included as "<folder>/x.pb.h". Its warnings are not ours.
function(kvartal_proto NAME)
  cmake_parse_arguments(ARG "GRPC" "FILE" "" ${ARGN})
  add_library(kvartal_${NAME} STATIC ${ARG_FILE})
  target_link_libraries(kvartal_${NAME} PUBLIC protobuf::libprotobuf)
  target_compile_options(kvartal_${NAME} PRIVATE -w)
  protobuf_generate(TARGET kvartal_${NAME} LANGUAGE cpp PROTOC_OUT_DIR ${CMAKE_CURRENT_BINARY_DIR})
  if(ARG_GRPC)
    target_link_libraries(kvartal_${NAME} PUBLIC gRPC::grpc++)
    protobuf_generate(TARGET kvartal_${NAME} LANGUAGE grpc
      GENERATE_EXTENSIONS .grpc.pb.h .grpc.pb.cc
      PLUGIN "protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>"
      PROTOC_OUT_DIR ${CMAKE_CURRENT_BINARY_DIR})
  endif()
endfunction()

# kvartal_test(NAME SOURCES a.cc ... DEPS lib ... [LABELS l ...] [ENVIRONMENT v=w] [TIMEOUT s] [SERIAL]): one
# GoogleTest binary, one ctest entry a case.
function(kvartal_test NAME)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT;ENVIRONMENT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} GTest::gtest_main GTest::gmock)
  target_compile_definitions(${NAME} PRIVATE KVARTAL_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    KVARTAL_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set(PROPS TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LABELS)
    list(APPEND PROPS LABELS ${ARG_LABELS})
  endif()
  if(ARG_ENVIRONMENT)
    list(APPEND PROPS ENVIRONMENT ${ARG_ENVIRONMENT})
  endif()
  if(ARG_SERIAL)
    list(APPEND PROPS RUN_SERIAL TRUE)
  endif()
  gtest_discover_tests(${NAME} DISCOVERY_TIMEOUT 60 PROPERTIES ${PROPS})
endfunction()
