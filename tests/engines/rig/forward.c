/* Stand-ins for full TensorRT's three libraries: each factory function goes to TensorRT-RTX's library, with that library's
   own version number. Compiled once for each soname with NVINFER and PARSER the paths of TensorRT-RTX's two libraries. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FOR_PLUGIN
static void *find(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    void *found = handle ? dlsym(handle, name) : NULL;
    if (!found) {
        fprintf(stderr, "forward.c: %s has no %s: %s\n", library, name, dlerror());
        abort();
    }
    return found;
}
#endif

#ifdef FOR_NVINFER
typedef int32_t version_of(void);
typedef void *make(void *, int32_t);
typedef void *registry(void);
typedef void *registry_for(int32_t);

static int32_t version(void)
{
    return ((version_of *)find(NVINFER, "getInferLibVersion"))();
}

/* TensorRT 11.4's builder has one virtual function more, buildEngineWithConfig, in front of buildSerializedNetworkToStream.
   A builder is {its table, its implementation}; the implementation gets a table in which the latter stands where 11.4 looks. */
enum { HEAD = 2, SLOTS = 32, STREAM_RTX = 17, STREAM = 18 };

void *createInferBuilder_INTERNAL(void *logger, int32_t asked)
{
    static void *table[HEAD + SLOTS];
    (void)asked;
    void **builder = ((make *)find(NVINFER, "createInferBuilder_INTERNAL"))(logger, version());
    if (!builder)
        return NULL;
    void ***implementation = builder[1];
    if (*implementation != table + HEAD)
        memcpy(table, *implementation - HEAD, sizeof table);
    table[HEAD + STREAM] = table[HEAD + STREAM_RTX];
    *implementation = table + HEAD;
    return builder;
}

void *createInferRuntime_INTERNAL(void *logger, int32_t asked)
{
    (void)asked;
    return ((make *)find(NVINFER, "createInferRuntime_INTERNAL"))(logger, version());
}

typedef void *make_refitter(void *, void *, int32_t);

void *createInferRefitter_INTERNAL(void *engine, void *logger, int32_t asked)
{
    (void)asked;
    return ((make_refitter *)find(NVINFER, "createInferRefitter_INTERNAL"))(engine, logger, version());
}

void *getPluginRegistry(void)
{
    return ((registry *)find(NVINFER, "getPluginRegistry"))();
}

void *getBuilderPluginRegistry(int32_t capability)
{
    return ((registry_for *)find(NVINFER, "getBuilderPluginRegistry"))(capability);
}
#endif

#ifdef FOR_PARSER
typedef int version_of(void);
typedef void *make(void *, void *, int);

int getNvOnnxParserVersion(void)
{
    return ((version_of *)find(PARSER, "getNvOnnxParserVersion"))();
}

void *createNvOnnxParser_INTERNAL(void *network, void *logger, int asked)
{
    (void)asked;
    return ((make *)find(PARSER, "createNvOnnxParser_INTERNAL"))(network, logger, getNvOnnxParserVersion());
}

void *createNvOnnxParserRefitter_INTERNAL(void *refitter, void *logger, int asked)
{
    (void)asked;
    return ((make *)find(PARSER, "createNvOnnxParserRefitter_INTERNAL"))(refitter, logger, getNvOnnxParserVersion());
}
#endif

#ifdef FOR_PLUGIN
int initLibNvInferPlugins(void *logger, const char *library_namespace)
{
    (void)logger;
    (void)library_namespace;
    return 1;
}
#endif
