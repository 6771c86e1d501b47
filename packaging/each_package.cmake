# Read by CPack before each package: a TGZ unpacks into one folder, a DEB into the system's.
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
