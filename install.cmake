# What `cmake --install` puts where, and the Debian package that `cpack` makes of it. moec finds its files by their place
# beside itself (codegen/install.c), so the tree may lie anywhere.

# Written from the tables of verbs, options and keys.
set(written ${CMAKE_BINARY_DIR}/written)
find_program(GZIP gzip REQUIRED)
foreach(what "man moec.1" "bash moec" "vim moespec.vim" "textmate moespec.tmLanguage.json")
  separate_arguments(what)
  list(GET what 0 format)
  list(GET what 1 name)
  add_custom_command(OUTPUT ${written}/${name} COMMAND ${CMAKE_COMMAND} -E make_directory ${written}
                     COMMAND moec help --as ${format} > ${written}/${name} DEPENDS moec)
  list(APPEND written_files ${written}/${name})
endforeach()
add_custom_command(OUTPUT ${written}/moec.1.gz COMMAND ${GZIP} -9nc ${written}/moec.1 > ${written}/moec.1.gz
                   DEPENDS ${written}/moec.1)
add_custom_target(written ALL DEPENDS ${written_files} ${written}/moec.1.gz)

install(TARGETS moec RUNTIME DESTINATION bin)
install(TARGETS moert ARCHIVE DESTINATION lib/moec)
install(DIRECTORY templates DESTINATION share/moec FILES_MATCHING
        PATTERN "*.[ch]" PATTERN "*.cu" PATTERN "*.cuh" PATTERN "*.cpp")
file(GLOB contract CONFIGURE_DEPENDS runtime/moe_*.h)
install(FILES ${contract} runtime/buckets.def runtime/edges.def runtime/ops.def runtime/status.def DESTINATION share/moec/runtime)
install(FILES codegen/page.css codegen/page.js DESTINATION share/moec/codegen)
install(DIRECTORY specs DESTINATION share/moec FILES_MATCHING
        PATTERN "*.moespec" PATTERN "*.sh" PATTERN "*.sbatch" PATTERN "*.yaml")
install(FILES README.md specs/LANGUAGE.md LICENSE NOTICE DESTINATION share/doc/moec)
install(FILES NOTICE DESTINATION share/doc/moec RENAME copyright)
install(FILES specs/paper/RESULTS.md DESTINATION share/doc/moec RENAME PAPER.md)
install(FILES ${written}/moec.1.gz DESTINATION share/man/man1)
install(FILES ${written}/moec DESTINATION share/bash-completion/completions)
install(FILES ${written}/moespec.vim DESTINATION share/vim/vimfiles/syntax)
install(FILES lang/editors/vim/ftdetect/moespec.vim DESTINATION share/vim/vimfiles/ftdetect)
install(DIRECTORY lang/editors/vscode DESTINATION share/moec)
install(FILES ${written}/moespec.tmLanguage.json DESTINATION share/moec/vscode/syntaxes)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR moec)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "compiler of training programs for Mixture-of-Experts transformers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "the authors of moec <moec@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "gcc, libc6-dev, libjansson-dev, libopenblas-dev") # what `moec build` compiles and links with
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++") # what `moec build --target cuda --device emulated` compiles with
include(CPack)
