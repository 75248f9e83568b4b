/* server/openapi.json, as bytes in the program. */
    .section .rodata
    .global srv_openapi_json
    .global srv_openapi_json_end
srv_openapi_json:
    .incbin "server/openapi.json"
srv_openapi_json_end:
    .byte 0
